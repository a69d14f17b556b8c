"""What a training sends: questions that wait for their answer, reports that are delivered when they can be."""
