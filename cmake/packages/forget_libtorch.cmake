# What trains is to look for LibTorch where it is on the machine, not where it was on this one.
file(GLOB_RECURSE training "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/zero_training.so")
foreach(file IN LISTS training)
  file(RPATH_REMOVE FILE "${file}")
endforeach()
