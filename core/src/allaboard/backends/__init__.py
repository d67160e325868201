"""Where runs live. Each backend answers the same questions; this package imports none of them."""
