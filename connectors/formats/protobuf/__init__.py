"""How are records written and read as Protocol Buffers, with the schemas of Confluent's ProtobufConverter?"""
