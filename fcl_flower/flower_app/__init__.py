"""The Flower app: ServerApp, ClientApp, and Flower's messages as ours.

It may import `service` and all rooms below it, and public names of Flower alone.
"""
