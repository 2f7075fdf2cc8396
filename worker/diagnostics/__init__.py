"""What does an operator ask when something looks wrong? Doctor, explain, tail, verify and the support bundle."""
