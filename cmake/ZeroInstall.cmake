# The CMake package: find_package(zero CONFIG) gives zero::zero.
include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/zero")

install(TARGETS zero EXPORT zeroTargets ARCHIVE COMPONENT library FILE_SET HEADERS COMPONENT library)
install(EXPORT zeroTargets NAMESPACE zero:: DESTINATION "${package}" COMPONENT library)
if(TARGET zero_cli)
  install(TARGETS zero_cli COMPONENT program)
  install(TARGETS zero_training LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/zero" COMPONENT program)
endif()

configure_package_config_file(cmake/zeroConfig.cmake.in "${PROJECT_BINARY_DIR}/zeroConfig.cmake"
                              INSTALL_DESTINATION "${package}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/zeroConfig.cmake" "${PROJECT_BINARY_DIR}/zeroConfigVersion.cmake"
              cmake/FindLibTorch.cmake cmake/FindLiburing.cmake DESTINATION "${package}" COMPONENT library)

if(PROJECT_IS_TOP_LEVEL)
  include(ZeroPackages)
endif()
