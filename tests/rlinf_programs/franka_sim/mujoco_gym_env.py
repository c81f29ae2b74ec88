GymRenderingSpec = MujocoGymEnv = object
