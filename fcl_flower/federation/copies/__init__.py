"""The server's models as clients have them: kept up to date by rounded differences."""
