"""Learning without forgetting, client side: the old model as a teacher."""
