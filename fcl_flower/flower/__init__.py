"""All that is private of Flower, in one place: its next release is a change here."""
