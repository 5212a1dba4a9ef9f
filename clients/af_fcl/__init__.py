"""AF-FCL, client side: a flow of features, and how far what it draws is believed."""
