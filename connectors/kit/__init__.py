"""How does what a plugin has written become a connector? Small sources and targets, with all that the engines need of them."""
