"""Messages between server and clients: coded, checked, counted, kept."""
