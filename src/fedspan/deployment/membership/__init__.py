"""Who belongs to a federation: invitations, requests, certificates, and the names that were removed."""
