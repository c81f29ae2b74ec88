from franka_sim import pendulum as pendulum
