"""Does a connector reach what the cluster itself keeps in Kafka?"""
