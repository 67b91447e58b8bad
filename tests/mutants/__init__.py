"""Would a test notice if this line were wrong? Small mistakes in the modules that decide figures, each to be caught by their tests."""
