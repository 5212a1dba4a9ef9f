"""Prediction with the models of a finished or a running federation.

It imports rounds, setup and the rooms below them.
"""
