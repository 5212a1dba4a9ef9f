"""Who is asked when, and how long a reply is waited for."""
