def add_one(int x): return x+1
