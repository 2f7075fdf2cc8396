"""Does a whole cluster lose, double or leak anything in hours of load and faults?"""
