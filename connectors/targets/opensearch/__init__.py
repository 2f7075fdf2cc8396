"""How do records become documents of OpenSearch or Elasticsearch?"""
