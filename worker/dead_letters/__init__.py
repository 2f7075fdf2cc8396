"""Which records were set aside, and how do they come back? The service behind REST and its child process."""
