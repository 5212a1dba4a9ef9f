"""The Flower app: ServerApp, ClientApp, and what turns Flower's words into ours.

It imports public names of Flower alone (`flwr.app`, `flwr.serverapp`,
`flwr.clientapp`), and may import all that lies below it: the rounds know no Flower.
"""
