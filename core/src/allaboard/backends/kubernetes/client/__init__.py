"""Clients of the API server: its address, our credentials, requests and answers, and when to try again.

`protocol` holds the requests and rules of the exchange, `api` the blocking and the async client that share
them; `kubeconfig`, `credentials`, `tls` and `loader` find the way in; `pool` runs blocking calls for a loop.
Nothing here knows a training job.
"""
