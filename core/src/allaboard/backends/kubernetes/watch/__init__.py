"""One list and watch for all followers, in client-go's words: `reflector` keeps a copy of one resource up to
date, `informer` wakes the followers of each run.
"""
