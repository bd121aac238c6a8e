# Debian packages, by cpack: libzero-dev is the library with its headers and CMake files, libzero-bin the program. Neither
# has anything of LibTorch, which Torch_DIR names.
set(release 1)
foreach(component library program)
  set(package_library libzero-dev)
  set(package_program libzero-bin)
  set(document "share/doc/${package_${component}}")
  install(FILES cmake/packages/copyright DESTINATION "${document}" COMPONENT ${component} EXCLUDE_FROM_ALL)
  install(FILES "${PROJECT_BINARY_DIR}/changelog.Debian.gz" DESTINATION "${document}" COMPONENT ${component} EXCLUDE_FROM_ALL)
endforeach()
configure_file(cmake/packages/changelog.in "${PROJECT_BINARY_DIR}/changelog.Debian" @ONLY)
file(ARCHIVE_CREATE OUTPUT "${PROJECT_BINARY_DIR}/changelog.Debian.gz" PATHS "${PROJECT_BINARY_DIR}/changelog.Debian"
     FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME libzero)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "The authors of libzero <libzero@users.noreply.github.com>")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL library program)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${release})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${package_library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS libstdc++-12-dev)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "Trains LibTorch modules under the stages of ZeRO: library
 Any torch::nn::Module, with its states sharded over the ranks. Programs find
 it by find_package(zero), with a LibTorch that Torch_DIR names.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME ${package_program})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "libc6, libgcc-s1, libstdc++6")
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION "Trains LibTorch modules under the stages of ZeRO: program
 The program zero, which trains language models, compares plans, foretells
 what they cost and launches ranks. What trains needs a LibTorch that Torch_DIR
 names.")
if(Liburing_FOUND)
  string(APPEND CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS ", liburing-dev")
  string(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS ", liburing2")
endif()
# Of this build's LibTorch.
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/packages/forget_libtorch.cmake")
include(CPack)
