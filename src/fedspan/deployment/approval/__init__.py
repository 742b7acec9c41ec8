"""Who may run what at a site: orders that researchers sign, and what the site's administrator decides about them."""
