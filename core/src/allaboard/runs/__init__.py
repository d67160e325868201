"""The two values around which everything is built, and what is read from them alone. Values in, values out.

`layout`: who trains, with everything filled in; the only way from a job to what is started. `observation`:
what is seen of a run, the same value from every backend; `status` computes its state. `queues` is what a
place has and who waits there, `boost` whom Kueue preempts first.
"""
