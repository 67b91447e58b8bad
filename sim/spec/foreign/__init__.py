"""What files of other programs say, in the words of our descriptions: configurations of models, launch files, wirings, traces."""
