"""A run as a monitoring system sees it while it goes on."""
