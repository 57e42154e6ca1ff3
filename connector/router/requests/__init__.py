"""Parses clients' requests: what is right goes on, what a client may not set is stripped, the rest is a 400.

One module per API says what of a request shapes its prompt, and how its prefill leg differs from it.
"""

from connector.router.requests.endpoint import Endpoint, OneLeg
from connector.router.requests.members import choose_model
from connector.router.requests.parsing import TurnRequest, parse_request

__all__ = ["Endpoint", "OneLeg", "TurnRequest", "choose_model", "parse_request"]
