"""How are schemas registered in an existing schema registry of Confluent's kind, and found there?"""
