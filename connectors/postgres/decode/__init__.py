"""How do pgoutput's messages become changes? The decoder, its native path and open transactions."""
