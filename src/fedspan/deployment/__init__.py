"""A real federation: what the server asks of a site, and what a site makes of it. No transport is in here."""
