"""What is a version of a row, and what ends it? The rules of every warehouse that keeps versions, which only writes what they say."""
