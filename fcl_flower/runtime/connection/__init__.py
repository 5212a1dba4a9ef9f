"""Whether a server is there, and what a user should read where it is not."""
