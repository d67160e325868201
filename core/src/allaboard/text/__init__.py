"""Text and its units: reading within bounds what others wrote, and writing it so that it can do no harm.

`untrusted` and `untrusted_yaml` read JSON and YAML of any origin, `filenames` the names in it that become
paths, `reportline` the lines of a training process, `units` and `names` what people write for sizes, times
and objects. `redaction` takes secrets out of what is told, `printable` what a terminal would act on. Values
in, values out; nothing here knows a job.
"""
