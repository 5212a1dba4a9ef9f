"""The use of a model after training: raw inputs in, names of classes out."""
