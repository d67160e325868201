"""Speaks to the API server: where it is, who we are, requests and answers, and when to try again.

`protocol` holds the words and rules of the exchange, `api` the blocking and the async client that share
them; `kubeconfig`, `credentials`, `tls` and `loader` find the way in; `pool` runs what blocks for a loop.
Nothing here knows a training job.
"""
