"""Questions to child processes with a time limit: the worker's side that calls, and the child's side that answers.

Both sides are apart since every such child imports the answer's side only and should start fast.
"""
