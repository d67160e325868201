"""Objects become one `Observation`: the pods' containers, conditions, obstacles, progress and deadlines of
one run. `lookup` fetches the objects; the rest is values in, values out.
"""
