"""The policies that are counted at every buffer size, by name."""

COMPULSORY = "compulsory"  # the misses that no policy avoids
TEXTBOOK_LRU = "textbook-lru"
BELADY = "belady"
ONE_PASS = (TEXTBOOK_LRU, BELADY, COMPULSORY)  # what is counted at every buffer size in one pass
