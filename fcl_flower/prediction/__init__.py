<<<<<<< HEAD
"""Prediction with the models of a finished or a running federation.

It imports rounds, setup and the rooms below them.
=======
"""The use of a model after training: raw inputs in, names of classes out.

It may import `deploy` and all rooms below it.
>>>>>>> f449d2f656a7fe28329d7d1546111acbee185a91
"""
