"""From a socket to the handler of a request, and back."""
