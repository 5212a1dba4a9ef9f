"""The Flower app: ServerApp, ClientApp, and the transport over Flower's grid.

It imports only public names of Flower, and may import all rooms below it.
"""
