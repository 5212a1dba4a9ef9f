"""The sections of a comparison, one file each."""
