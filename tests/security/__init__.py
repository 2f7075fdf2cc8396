"""What an attacker with few rights tries: each test was red before the hole that it shows was closed."""
