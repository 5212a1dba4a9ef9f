"""Tasks that are not drawn but given, by a user or by another library's benchmark."""
