"""Secure aggregation: the server learns the sum over clients, and no summand.

Bonawitz et al., CCS 2017, https://doi.org/10.1145/3133956.3133982, against a server
that follows the protocol and looks at all that it gets.
"""
