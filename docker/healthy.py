"""Health check: exit with 0 if URL answers; ``healthy.py URL [AUTHORITY]``."""

import ssl
import sys
import urllib.request

url, *authority = sys.argv[1:]
context = ssl.create_default_context(cafile=authority[0] if authority else None)
urllib.request.urlopen(url, timeout=4, context=context)
